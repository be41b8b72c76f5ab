"""The second question about a document reads only what is new."""
import quire

engine = quire.Engine()
document = "Quire keeps keys and values of every token it has read. " * 40
for question in ("What does Quire keep?", "Of which tokens?"):
    answer = engine.generate(f"{document}\n\nQ: {question}\nA:", max_tokens=12, temperature=0)
    print(f"{answer.cached_tokens} of {answer.usage['prompt_tokens']} prompt tokens were cached")
