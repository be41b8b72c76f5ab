"""The 32 prompts of the greedy reference. Edit, then run make_reference.py again."""

CONTINUE = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The three laws of motion are",
    "In 1969, the first people to walk on the Moon",
    "#include <stdio.h>\n\nint main(void) {\n",
    "Q: What is 17 + 26?\nA:",
    "The quick brown fox",
    "Ingredients:\n- 2 eggs\n- 100 g flour\n- ",
    "SELECT name, age FROM people WHERE",
    "Dear Sir or Madam,\n\nI am writing to",
    "To be or not to be, that is",
    "A triangle has three sides. A square has",
    "<html>\n<head>\n<title>",
    "Il était une fois",
    "Die Hauptstadt von Deutschland ist",
    "1, 2, 4, 8, 16, 32,",
    "The opposite of hot is cold. The opposite of up is",
    "Photosynthesis is the process by which",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "The main causes of the First World War were",
]

CHAT = [
    "Explain what a key-value cache is in one sentence.",
    "Write a haiku about rain.",
    "What is the largest planet of the solar system?",
    "Give me three tips for sleeping well.",
    "Translate to French: Good morning, how are you?",
    "Write a Python function that reverses a string.",
]

# (start, length) in tokens of the evaluation text: longer prompts, whose answers depend on what stands far back.
EXCERPTS = [(100, 200), (3000, 400), (6000, 700), (9000, 1100)]
