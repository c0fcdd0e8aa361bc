#pragma once

namespace megatron {

/// Whether a sanitizer watches: exhaustive tests, whose whole range the plain build has tried, try a part of it there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace megatron
