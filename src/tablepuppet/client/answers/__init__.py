"""A client's answers, by subject, as the messages are (protocol/).

Each is a function of what the client has (state.py) and one request; client.py says which request is whose.
"""
