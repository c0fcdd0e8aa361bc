#pragma once
#include <cmath>
#include <cstdint>
#include <string>

#include "megatron/base/error.h"
#include "megatron/interchange/megatron_lm/pickle.h"

namespace megatron::interchange {

/// The attributes of a saved argparse.Namespace.
class Arguments {
 public:
  Arguments(const Pickle& values, const PickleNode& args, const std::string& file)
      : values_(values), args_(args), file_(file) {}

  [[noreturn]] void refuse(const std::string& name, const std::string& rule, const std::string& got) const {
    throw ConfigError(rule_got_fix(concat(file_, ": args.", name, " must be ", rule, "."), got));
  }
  /// None and an attribute that is not there are the same.
  const PickleNode* find(const char* name) const {
    const PickleNode* const found = values_.find(args_, name);
    return found == nullptr || found->kind == PickleNode::Kind::None ? nullptr : found;
  }
  std::int64_t size(const char* name, std::int64_t most, std::int64_t otherwise = -1) const {
    const PickleNode* const found = find(name);
    if (found == nullptr && otherwise >= 0) return otherwise;
    if (found == nullptr || found->kind != PickleNode::Kind::Integer || found->integer < 1 || found->integer > most)
      refuse(name, concat("a whole number from 1 to ", most), found == nullptr ? "none" : concat(found->integer));
    return found->integer;
  }
  /// size() from 0 on.
  std::int64_t count(const char* name, std::int64_t most, std::int64_t otherwise) const {
    const PickleNode* const found = find(name);
    if (found == nullptr) return otherwise;
    if (found->kind != PickleNode::Kind::Integer || found->integer < 0 || found->integer > most)
      refuse(name, concat("a whole number from 0 to ", most), "something else");
    return found->integer;
  }
  double number(const char* name, double otherwise) const {
    const PickleNode* const found = find(name);
    if (found == nullptr) return otherwise;
    if (found->kind == PickleNode::Kind::Integer) return static_cast<double>(found->integer);
    if (found->kind != PickleNode::Kind::Float || !std::isfinite(found->number))
      refuse(name, "a number", "something else");
    return found->number;
  }
  bool flag(const char* name, bool otherwise = false) const {
    const PickleNode* const found = find(name);
    if (found == nullptr) return otherwise;
    if (found->kind != PickleNode::Kind::Bool) refuse(name, "True or False", "something else");
    return found->integer != 0;
  }
  std::string text(const char* name, const std::string& otherwise, std::size_t most = 64) const {
    const PickleNode* const found = find(name);
    if (found == nullptr) return otherwise;
    if (found->kind != PickleNode::Kind::Text || found->text.size() > most)
      refuse(name, "a short text", "something else");
    return found->text;
  }

 private:
  const Pickle& values_;
  const PickleNode& args_;
  const std::string& file_;
};

}  // namespace megatron::interchange
