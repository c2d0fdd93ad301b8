package shared

// OnlyOwner of a lease by its name: there is one, or none.
func OnlyOwner(owners []string) string {
	if len(owners) == 0 {
		return ""
	}
	return owners[0]
}
