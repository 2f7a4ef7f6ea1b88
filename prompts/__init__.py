"""All texts for people and models, in English and Chinese. Imports no other package."""
