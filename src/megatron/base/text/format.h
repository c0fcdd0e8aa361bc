#pragma once

// fmt::format for sources; headers do not include it. Debian's {fmt} is compiled once (format.cpp). A folder that sees
// libtorch's headers gets the newer one that these have, compiled into what uses it.
#if __has_include(<fmt/base.h>) && !defined(FMT_HEADER_ONLY)
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>
