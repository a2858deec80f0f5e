"""Building a corpus: from files of text to indexed tokens, in parallel, and further where it was interrupted."""
