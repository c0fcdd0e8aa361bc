#include "megatron/base/error.h"

namespace megatron {

std::string rule_got_fix(const std::string& rule, const std::string& got, const std::string& fix) {
  return rule + "\n  got:  " + got + (fix.empty() ? "" : "\n  fix:  " + fix);
}

}  // namespace megatron
