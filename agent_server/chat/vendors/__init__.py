"""The chats of vendors: whom to believe, how a message is read, and how one is sent."""
