#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace megatron::serve {

/// Counts and times of a server, as Prometheus reads them. May be used from many threads at once.
class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  /// Names a family before it is used; `buckets`: of a histogram, ascending.
  void declare(const std::string& name, const char* type, const char* help, std::vector<double> buckets = {});
  void add(const std::string& name, double amount = 1, const Labels& labels = {});
  void set(const std::string& name, double value, const Labels& labels = {});
  void observe(const std::string& name, double value);

  /// The text format 0.0.4: families in the order of their names, a line a value.
  std::string text() const;

 private:
  struct Family {
    std::string type, help;
    std::vector<double> buckets;
    std::map<std::string, double> values;  ///< by their labels as text
    std::vector<std::uint64_t> counts;     ///< of a histogram, by bucket, the last beyond all
    double sum = 0;
  };
  Family& family(const std::string& name);

  mutable std::mutex mutex_;
  std::map<std::string, Family> families_;
};

/// Those of a server that writes texts.
void declare_metrics(Metrics& metrics);

}  // namespace megatron::serve
