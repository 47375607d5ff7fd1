"""What can happen to a job's communication, one file for each: found in what is known, told as an `Incident`."""
