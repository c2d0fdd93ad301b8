package storetest

var laneRaceTests = []test{}
