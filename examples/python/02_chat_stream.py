"""A conversation, printed as it is made."""
import quire

engine = quire.Engine()
messages = [{"role": "user", "content": "Name three colours."}]
for piece in engine.chat_stream(messages, max_tokens=40, temperature=0):
    print(piece, end="", flush=True)
print()
