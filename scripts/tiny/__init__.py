"""The bundled tiny language model: a small invented world, its corpus, its training and its check.

Nothing in here is taken from other texts: every sentence is composed by the generators of this package, so the corpus,
the question suite ``mini`` and the two models trained on it can be shipped and rebuilt anywhere. The models exist to
run the harness end to end without a download; they are no basis for statements about decoding methods.
"""
