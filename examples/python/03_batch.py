"""Many prompts in one batch: each answer is the one that its prompt gets alone."""
import quire

engine = quire.Engine()
countries = ["France", "Italy", "Japan", "Peru"]
answers = engine.generate([f"The capital of {c} is" for c in countries], max_tokens=6, temperature=0)
for country, answer in zip(countries, answers):
    print(f"{country}: {answer!r}")
