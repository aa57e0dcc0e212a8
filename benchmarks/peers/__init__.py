"""Other systems, each given the same task as Headgate and written as its own users would write it."""
