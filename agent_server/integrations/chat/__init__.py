"""Conversations with people in chats and terminals: what they ask, and what is answered."""
