"""Examples from a list of prompts and responses."""

from dataclasses import dataclass

from rampcli.data.examples import Example


@dataclass(frozen=True)
class ListedExamples:
    pairs: tuple[tuple[str, str], ...]
    name: str = "listed"
    fingerprint: str = "listed"

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Example:
        prompt, response = self.pairs[index]
        return Example(prompt, response, {"prompt": prompt, "response": response})

    def place(self, index: int) -> str:
        return f"{self.name} {index}"
