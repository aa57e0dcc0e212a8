"""The concurrent structures of ordered processing (sections 3 and 4): what workers on one box share."""
