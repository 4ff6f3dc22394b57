"""Bad input: the kinds, generated from the schema, the files, the commands and the answers of a server."""
