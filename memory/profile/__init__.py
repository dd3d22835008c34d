"""Profile: what a manager did, as data; counted, judged, summed up and drawn."""
