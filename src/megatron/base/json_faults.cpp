#include "megatron/base/json_faults.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

namespace megatron {
namespace {

using nlohmann::json;

class Scanner : public nlohmann::json_sax<json> {
 public:
  explicit Scanner(std::size_t max_depth) : max_depth_(max_depth) {}

  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (!faults_.key_twice && !keys_.back().insert(key).second) faults_.key_twice = key;
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override { return false; }

  JsonFaults take() { return std::move(faults_); }

 private:
  bool open() {
    keys_.emplace_back();
    faults_.too_deep = keys_.size() > max_depth_;
    return !faults_.too_deep;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::size_t max_depth_;
  std::vector<std::unordered_set<std::string>> keys_;  // of what is open; of arrays none
  JsonFaults faults_;
};

}  // namespace

JsonFaults json_faults(std::string_view text, std::size_t max_depth) {
  Scanner scanner(max_depth);
  json::sax_parse(text, &scanner);
  return scanner.take();
}

}  // namespace megatron
