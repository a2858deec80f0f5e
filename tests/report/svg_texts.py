import xml.etree.ElementTree as ElementTree

TEXT = "{http://www.w3.org/2000/svg}text"


def texts(svg: bytes) -> list[str]:
    return [element.text for element in ElementTree.fromstring(svg).iter(TEXT)]
