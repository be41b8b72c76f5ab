"""Continue a text."""
import quire

engine = quire.Engine()  # a small model, fetched on first use; or Engine("model.gguf")
answer = engine.generate("The capital of France is", max_tokens=8, temperature=0)
print(answer)
print(answer.token_ids, answer.finish_reason, answer.usage["prompt_tokens"])
