"""Characters as tables in C++, for the make_*.py of this folder and of tasks/."""
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(points, value=lambda point: None):
    """[first, last, value] of the runs of `points`, which are in order, that have the same value."""
    found = []
    for point in points:
        if found and found[-1][1] == point - 1 and found[-1][2] == value(point):
            found[-1][1] = point
        else:
            found.append([point, point, value(point)])
    return found


def array(comment, name, points):
    rows = ", ".join(f"{{0x{first:x}, 0x{last:x}}}" for first, last, _ in ranges(points))
    return f"/// {comment}\ninline constexpr CodePointRange {name}[] = {{{rows}}};\n\n"
