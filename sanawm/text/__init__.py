"""From a prompt to the text embeddings that the refiner and stage 1 attend to.

`prompt` and `instruction` read and check the text, `tokenizer` and `gemma` give hidden states.
For the refiner, `packing` and `connectors` turn one state per layer into embeddings, and `encode`
joins the steps; for stage 1, `caption` puts the instruction in front and picks the rows.
`embeddings` and `store` keep the results. Import from these modules: this one stays empty, so that
reading a prompt loads neither torch nor transformers.
"""
