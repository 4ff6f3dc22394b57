"""The bundled tiny language models: an invented world, its corpus, and the training of models and
heads on it.

The generators of this package compose every sentence, so that the corpus, the question suite
``mini`` and the models can be shipped and rebuilt anywhere. The models exist to run the harness end
to end without a download; they support no statement about decoding methods.
"""
