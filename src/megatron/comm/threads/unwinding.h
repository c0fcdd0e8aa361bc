#pragma once
#include <exception>

namespace megatron::comm {

/// Made with a handle: tells its destructor whether an exception is ending the handle's owner. Such a rank does not
/// wait for its peers: they shall hear of its failure at once.
class Unwinding {
 public:
  explicit operator bool() const { return std::uncaught_exceptions() > exceptions_before_; }

 private:
  int exceptions_before_ = std::uncaught_exceptions();
};

}  // namespace megatron::comm
