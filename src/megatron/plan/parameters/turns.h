#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace megatron::plan {

/// Where things lie that take turns in one memory. Elements.
struct Turns {
  std::int64_t size = 0;
  std::vector<std::int64_t> begin;
};

/// Things of so many elements, of which those that `meet` are there at the same time and lie apart. `alone`: by thing,
/// whether it shares its place with nobody. The largest are placed first, each as low as those that it meets leave
/// room.
Turns take_turns(const std::vector<std::int64_t>& sizes, const std::vector<bool>& alone,
                 const std::function<bool(std::size_t, std::size_t)>& meet);

}  // namespace megatron::plan
