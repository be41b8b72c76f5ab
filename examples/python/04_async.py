"""Tasks of an event loop ask one engine at once."""
import asyncio

import quire


async def main() -> None:
    engine = quire.Engine()
    questions = ["What is water?", "What is fire?", "What is air?"]
    answers = await asyncio.gather(*(engine.achat(q, max_tokens=20, temperature=0) for q in questions))
    for question, answer in zip(questions, answers):
        print(question, answer)
    async for piece in engine.stream("Once upon a time", max_tokens=12, temperature=0):
        print(piece, end="")
    print()


asyncio.run(main())
