"""What a chat template may take: steps, seconds, memory, and the sizes of the values that it makes.

One meter belongs to one run of a template, in one thread. All that a template can do is a sequence of single
operations; before and after each the sizes of its values are known to be small, so that none takes long or needs much,
and between two of them the meter looks at the clock and at the memory of the process.
"""

import sys
import threading
import time
from collections.abc import MappingView
from pathlib import Path

import jinja2

try:
    import resource
except ImportError:  # Windows: the growth of the process is not watched
    resource = None

MOST_STEPS = 200_000  # lines of a template that are run; a long conversation takes some thousands
MOST_SECONDS = 8.0  # of the thread's own time; the steps end most endless loops before
LONGEST = 1 << 22  # characters and entries of a value, with all that is inside it
DEEPEST = 100  # levels of lists and dicts
MOST_CALLS = (
    64  # macros and loops that call each other, some five calls of Python each, of which 1000 may be open
)
MOST_GROWTH = 1 << 30  # bytes by which the memory of the process may exceed what it ever was
WIDEST = 10_000  # columns that a text can be padded to, bits of a number
FILE_NAME = "<template>"  # that of the code Jinja makes

UNCOUNTED = {__file__, str(Path(__file__).with_name("sandbox.py"))}  # the guards themselves
WALKED = 64  # entries up to which a container is counted anew each time
_running = threading.local()


class Stopped(jinja2.TemplateError):
    """A template asked for more than it may."""


class Meter:
    """Counts what one run of a template takes; inside a ``with`` it is the one that `check` means."""

    def __init__(self):
        self._left = MOST_STEPS
        self._largest = _peak_memory() + MOST_GROWTH
        self._until = time.thread_time() + MOST_SECONDS
        self._known = {}  # id of a container -> the container, which keeps the id its own, its size and depth
        self._held = 0
        self._open = 0  # functions of the template that run

    def __enter__(self):
        _running.meter = self
        self._tracer = sys.gettrace()
        sys.settrace(self.enter)
        return self

    def __exit__(self, *error):
        sys.settrace(self._tracer)
        _running.meter = None

    def enter(self, frame, event, argument):
        """Called by Python for each function that is entered."""
        if frame.f_code.co_filename in UNCOUNTED:
            return None
        self._count()
        if frame.f_code.co_filename != FILE_NAME:
            return None
        self._open += 1
        if self._open > MOST_CALLS:
            raise Stopped(f"its macros and loops call each other more than {MOST_CALLS} levels deep")
        return self.line

    def line(self, frame, event, argument):
        """Called by Python for each line of the template, and where one of its functions ends or yields."""
        self._count()
        if event == "return":
            self._open -= 1
        for value in frame.f_locals.values():
            self.measure(value)
        return self.line

    def _count(self):
        self._left -= 1
        if self._left < 0:
            raise Stopped(f"it does not end within {MOST_STEPS} steps")
        if time.thread_time() > self._until:
            raise Stopped(f"it does not end within {MOST_SECONDS:g} seconds")
        if _peak_memory() > self._largest:
            raise Stopped(f"it takes more than {MOST_GROWTH >> 20} MiB of memory")

    def measure(self, value, above=0):
        """Return size and depth of a value; each container is counted as often as it is met, as its text would be."""
        if isinstance(value, (str, bytes)):
            size, depth = len(value), 0
        elif isinstance(value, (list, tuple, dict)):
            size, depth = self._container(value, above)
        elif isinstance(value, MappingView):  # made anew by each call, and shown with all that is in it
            size, depth = self._walk(value, above)
        elif isinstance(value, int):
            check_bits(value.bit_length())
            size, depth = 1 + value.bit_length() // 3, 0  # at most so many digits
        else:
            return 1, 0
        check_size(size)
        return size, depth

    def _container(self, value, above):
        found = self._known.get(id(value))
        if found is not None:
            return found[1:]
        if above > DEEPEST:
            raise Stopped(f"it nests lists or dicts more than {DEEPEST} levels deep")
        size, depth = self._walk(value, above)
        if size > WALKED:  # what a template has made never changes, and neither do the messages
            if self._held > LONGEST:
                self._known.clear()
                self._held = 0
            self._known[id(value)] = value, size, depth
            self._held += len(value)
        return size, depth

    def _walk(self, value, above):
        """Count a container and all that is inside it."""
        size, depth = 1 + len(value), 0
        entries = (entry for pair in value.items() for entry in pair) if isinstance(value, dict) else value
        for entry in entries:
            inside, levels = self.measure(entry, above + 1)
            size, depth = size + inside, max(depth, levels)
            check_size(size)
        if depth >= DEEPEST:
            raise Stopped(f"it nests lists or dicts more than {DEEPEST} levels deep")
        return size, depth + 1


def _peak_memory():
    """Bytes that the process held at its largest."""
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def check(value):
    """Return a value of a template that is no larger than it may be."""
    _running.meter.measure(value)
    return value


def measure(value):
    """Return size and depth of a value, as `Meter.measure` does."""
    return _running.meter.measure(value)


def check_size(size):
    """Stop a template that makes a value of this size."""
    if size > LONGEST:
        raise Stopped(f"it makes a text or list of more than {LONGEST} characters or entries")


def check_width(width):
    """Stop a template that pads a text to so many columns."""
    if isinstance(width, int) and abs(width) > WIDEST:
        raise Stopped(f"it pads a text to more than {WIDEST} columns")


def check_bits(bits):
    """Stop a template that computes a number of so many bits."""
    if bits > WIDEST:
        raise Stopped(f"it computes a number of more than {WIDEST} bits")
