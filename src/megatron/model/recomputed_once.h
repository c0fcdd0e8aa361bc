#pragma once
#include <functional>
#include <optional>
#include <utility>

#include "megatron/parallel/backward.h"

namespace megatron::model {

/// A value that is made when it is first asked for in the backward pass. It lives as long as those who may ask: a
/// weight gradient that is put off does not make it twice.
template <class T>
class RecomputedOnce {
 public:
  explicit RecomputedOnce(std::function<T()> make) : make_(std::move(make)) {}
  T& value() {
    if (!value_) value_ = parallel::without_autograd(std::exchange(make_, nullptr));
    return *value_;
  }

 private:
  std::function<T()> make_;
  std::optional<T> value_;
};

}  // namespace megatron::model
