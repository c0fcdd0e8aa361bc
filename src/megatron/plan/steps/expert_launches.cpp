#include <utility>

#include "megatron/plan/steps/launch_writer.h"

// Launches of a layer of experts, of which each gets as many rows.
namespace megatron::plan {
namespace {

class ExpertsOfLayer {
 public:
  explicit ExpertsOfLayer(LaunchWriter& to)
      : to_(to),
        experts_(*to.run().shape.experts),
        size_(to.size()),
        ep_(to.run().config.parallel.ep),
        count_(static_cast<double>(experts_.count)),
        copies_(static_cast<double>(experts_.top_k)),
        ffn_(static_cast<double>(experts_.expert.width) / size_.tp),
        fc1_(experts_.expert.gated ? 2 * ffn_ : ffn_),
        shared_ffn_(static_cast<double>(experts_.shared_width) / size_.tp),
        shared_fc1_(experts_.expert.gated ? 2 * shared_ffn_ : shared_ffn_) {}

  void forward() {
    wide_product("router", "logits", count_);
    choose();
    const int rows = to_experts("y2", "rows");
    if (has_shared()) {
      if (experts_.shared_gate) wide_product("shared gate", "gate", 1);
      products("grouped_linear_activation", "shared fc1", "y2", "shared u", size_.hidden, shared_fc1_, 1, 1);
      to_.add("", "shared activation", {"shared u"}, {"shared a"}, shared_fc1_ + shared_ffn_);
    }
    come(rows, "rows");
    products("grouped_linear_activation", "experts' fc1", "rows", "u", size_.hidden, fc1_, copies_, local());
    add_biases("u", fc1_);
    to_.add("", "experts' activation", {"u"}, {"a"}, copies_ * (fc1_ + ffn_));
    products("grouped_linear", "experts' fc2", "a", "z", ffn_, size_.hidden, copies_, local());
    add_biases("z", size_.hidden);
    const int back = come_back("z");
    if (has_shared()) {
      products("grouped_linear", "shared fc2", "shared a", "shared z", shared_ffn_, size_.hidden, 1, 1);
      if (experts_.shared_gate)
        to_.add("", "shared gate, counted", {"shared z", "gate"}, {"shared z"}, 2 * size_.hidden);
    }
    combine(back, "z", "branch2");
    if (has_shared()) to_.add("", "shared, added", {"branch2", "shared z"}, {"branch2"}, 3 * size_.hidden);
    to_.sum_over_ranks("branch2");
  }

  void backward(const std::string& dbranch) {
    to_.norm_again("x2", "y2");
    const int dz = to_experts(dbranch, "dz");
    numbers("weights of the copies", "choice", "counts", false);
    if (has_shared()) {
      products("grouped_input_gradient", "shared fc2, input", dbranch, "shared da", size_.hidden, shared_ffn_, 1, 1);
      to_.add("weighted_activation_backward", "shared activation, backward and again", {"shared da", "shared u"},
              {"shared du", "shared a"}, 2 * shared_fc1_ + 2 * shared_ffn_);
    }
    come(dz, "dz");
    products("grouped_input_gradient", "experts' fc2, input", "dz", "da", size_.hidden, ffn_, copies_, local());
    to_.add("weighted_activation_backward", "experts' activation, backward and again", {"da", "u", "counts"},
            {"du", "a", "dcounts"}, copies_ * (2 * fc1_ + 2 * ffn_));
    if (experts_.expert.bias) {
      to_.add("", "bias times gradient", {"dz", "weights", "dcounts"}, {"dcounts"}, copies_ * size_.hidden);
      to_.add("", "experts' bias gradients", {"du", "dz", "counts", "gradients"}, {"gradients"},
              copies_ * (fc1_ + size_.hidden));
    }
    products("grouped_input_gradient", "experts' fc1, input", "du", "drows", fc1_, size_.hidden, copies_, local());
    const int drows = come_back("drows");
    numbers("gradients of the weights", "dcounts", "dchoice", true);
    if (has_shared())
      products("grouped_input_gradient", "shared fc1, input", "shared du", "shared dy2", shared_fc1_, size_.hidden, 1,
               1);
    combine(drows, "drows", "dy2");
    to_.add_bytes("", "router, backward", {"logits", "choice", "dchoice"}, {"dlogits"},
                  size_.tokens * size_.wide * (2 * count_ + 2 * copies_));
    back_through("router", "dlogits", "dy2", count_);
    if (has_shared()) {
      to_.add("", "shared, added", {"dy2", "shared dy2"}, {"dy2"}, 3 * size_.hidden);
      if (experts_.shared_gate) back_through("shared gate", "gate", "dy2", 1);
    }
    const int rows = to_experts("y2", "rows");
    if (has_shared()) {
      weight_gradients("shared fc1", "shared du", "y2", shared_fc1_, size_.hidden, 1, 1);
      weight_gradients("shared fc2", dbranch, "shared a", size_.hidden, shared_ffn_, 1, 1);
    }
    weight_gradients("experts' fc2", "dz", "a", size_.hidden, ffn_, copies_, local());
    come(rows, "rows");
    weight_gradients("experts' fc1", "du", "rows", fc1_, size_.hidden, copies_, local());
    to_.wait_for(to_.sum_over_ranks("dy2"));
  }

 private:
  bool has_shared() const { return experts_.shared_width > 0; }
  /// Experts of this rank.
  double local() const { return count_ / ep_; }
  double row_bytes() const { return copies_ * size_.hidden * size_.tokens * size_.element; }

  /// A product in float32 of y2, which is widened for it.
  void wide_product(const std::string& name, const std::string& to, double outputs) {
    widen(name);
    to_.add_bytes("linear", name + " product", {"wide y2", "weights"}, {to},
                  size_.wide * (size_.tokens * (size_.hidden + outputs) + size_.hidden * outputs));
  }
  void widen(const std::string& name) {
    to_.add("", name + "'s input in float32", {"y2"}, {"wide y2"}, size_.hidden * (1 + size_.wide / size_.element));
  }
  /// Adds to `dx` what comes through such a product, and to its weight's gradient.
  void back_through(const std::string& name, const std::string& dy, const std::string& dx, double outputs) {
    to_.add_bytes("", name + ", input product", {dy, "weights"}, {"wide dy2"},
                  size_.wide * (size_.tokens * (size_.hidden + outputs) + size_.hidden * outputs));
    to_.add("", name + "'s part, added", {"wide dy2", dx}, {dx}, size_.hidden * (2 + size_.wide / size_.element));
    widen(name);
    to_.add_bytes("linear_weight_gradient", name + " weight gradient", {dy, "wide y2", "gradients"}, {"gradients"},
                  size_.wide * (size_.tokens * (size_.hidden + outputs) + 2 * size_.hidden * outputs));
  }

  /// Which experts, what they count, and in which order copies go to them; the host reads how many go to each.
  void choose() {
    constexpr double kIndex = 8;
    to_.add_bytes("", "choice of experts", {"logits"}, {"choice"},
                  size_.tokens * (2 * count_ * size_.wide + copies_ * (kIndex + size_.wide)));
    to_.add_bytes("", "order of the copies", {"choice"}, {"routes"}, size_.tokens * copies_ * kIndex * 4);
    if (ep_ > 1) to_.wait_for(to_.message(LaunchWriter::kExperts, "counts of all ranks", "routes", "routes", 0));
  }

  /// Rows of tokens for their experts -> the message that brings them; -1: they are there.
  int to_experts(const std::string& tokens, const std::string& to) {
    const std::string sent = ep_ > 1 ? to + " sent" : to;
    to_.add("", "rows of the copies", {tokens, "routes"}, {sent}, (1 + copies_) * size_.hidden);
    return ep_ > 1 ? to_.message(LaunchWriter::kExperts, "exchange of " + to, sent, to + " come", 2 * row_bytes()) : -1;
  }
  /// Waits for rows that come from other ranks, and puts those of an expert together.
  void come(int message, const std::string& rows) {
    if (message < 0) return;
    to_.wait_for(message);
    to_.add("", "rows by expert", {rows + " come", "routes"}, {rows}, 2 * copies_ * size_.hidden);
  }
  /// Sends rows of experts back -> the message; -1: they are there.
  int come_back(const std::string& rows) {
    if (ep_ == 1) return -1;
    to_.add("combined_rows", "rows by rank", {rows, "routes"}, {rows + " sent"}, 2 * copies_ * size_.hidden);
    return to_.message(LaunchWriter::kExperts, "exchange of " + rows, rows + " sent", rows + " back", 2 * row_bytes());
  }
  void combine(int message, const std::string& rows, const std::string& to) {
    to_.wait_for(message);
    to_.add("combined_rows", "sum of the copies", {message < 0 ? rows : rows + " back", "routes", "choice"}, {to},
            (1 + copies_) * size_.hidden);
  }
  /// A number of each copy, there or back.
  void numbers(const std::string& name, const std::string& from, const std::string& to, bool back) {
    const double bytes = 2 * size_.tokens * copies_ * size_.wide;
    const std::string sent = ep_ > 1 ? to + " sent" : to;
    to_.add_bytes(ep_ > 1 && back ? "combined_rows" : "", name, {from, "routes"}, {sent}, bytes);
    if (ep_ == 1) return;
    to_.wait_for(to_.message(LaunchWriter::kExperts, "exchange of " + to, sent, to + " come", bytes));
    to_.add_bytes("", name + ", in order", {to + " come", "routes"}, {to}, bytes);
  }

  /// Products of `groups` weights, of `rows` rows for each token.
  void products(const std::string& call, const std::string& name, const std::string& from, const std::string& to,
                double in, double out, double rows, double groups) {
    to_.add(call, name + " product", {from, "weights"}, {to}, rows * (in + out));
    to_.plan.launches.back().bytes += groups * in * out * size_.element;
  }
  /// Behind the products of all experts at once, which are of bf16; others add theirs themselves.
  void add_biases(const std::string& y, double out) {
    if (experts_.expert.bias && to_.run().config.train.dtype == "bf16")
      to_.add("", "experts' biases", {y, "weights"}, {y}, 2 * copies_ * out);
  }
  void weight_gradients(const std::string& name, const std::string& dy, const std::string& x, double out, double in,
                        double rows, double groups) {
    to_.add("grouped_weight_gradient", name + " weight gradient", {dy, x, "gradients"}, {"gradients"},
            rows * (in + out));
    to_.plan.launches.back().bytes += size_.gradient_uses * groups * in * out * size_.wide;
  }

  LaunchWriter& to_;
  const Experts& experts_;
  const LaunchSizes& size_;
  int ep_;
  double count_, copies_, ffn_, fc1_, shared_ffn_, shared_fc1_;
};

}  // namespace

void experts_forward(LaunchWriter& to) { ExpertsOfLayer(to).forward(); }
void experts_backward(LaunchWriter& to, const std::string& dbranch) { ExpertsOfLayer(to).backward(dbranch); }

}  // namespace megatron::plan
