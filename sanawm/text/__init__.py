"""From a prompt to the text embeddings that the refiner attends to.

`prompt` reads and checks the text, `tokenizer` and `gemma` give one hidden state per layer,
`packing` and `connectors` turn those into embeddings, `encode` joins the steps, `embeddings` and
`store` keep the result. Import from these modules: this one stays empty, so that reading a prompt
loads neither torch nor transformers.
"""
