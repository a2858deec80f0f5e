"""Builds a corpus: encodes files of text into indexed tokens, in parallel and resumably."""
