"""A named conversation, and a fork of it that shares what was computed."""
import quire

engine = quire.Engine()
story = engine.session("story")
print(story.generate("Once upon a time there was a fox who", max_tokens=16, temperature=0))
other = story.fork("another end")
print("A:", story.generate(" Then it rained, and", max_tokens=12, temperature=0))
print("B:", other.generate(" Then the sun came, and", max_tokens=12, temperature=0))
print(engine.sessions())
