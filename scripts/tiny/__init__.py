"""The bundled tiny language model: a small invented world, its corpus, its training and its check.

Every sentence is composed by the generators of this package, so the corpus, the question suite ``mini`` and the models
trained on it can be shipped and rebuilt anywhere. The models exist to run the harness end to end without a download;
they support no statement about decoding methods.
"""
