"""The live page: a read-only web server over a folder of runs."""
