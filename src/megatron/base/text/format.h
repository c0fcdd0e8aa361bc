#pragma once

// fmt::format for sources; headers do not include it. Compiled into what uses it: libtorch's headers have a newer {fmt}
// than Debian's library, and a folder that sees libtorch gets that one.
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>
