#include <cstring>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/data/columns/arrow_batch.h"
#include "megatron/data/columns/json_text.h"

namespace megatron::data {
namespace {

constexpr std::string_view kArrowMagic = "ARROW1";
constexpr std::uint32_t kContinues = 0xFFFFFFFF;

class ArrowRows : public RowSource {
 public:
  explicit ArrowRows(ColumnFile file) : file_(std::move(file)), json_(file_) {
    end_ = file_.bytes.size();
    const std::string_view text(reinterpret_cast<const char*>(file_.bytes.data()), end_);
    if (text.starts_with(kArrowMagic)) {  // a stream between two marks, then a table of contents
      constexpr std::size_t kTail = 4 + kArrowMagic.size();
      if (end_ < 8 + kTail || !text.ends_with(kArrowMagic))
        file_.damaged(end_, "an Arrow file must end as it begins.", "other bytes");
      const std::uint64_t contents = FlatTable::read<std::uint32_t>(file_.bytes.data() + end_ - kTail);
      file_.part(0, contents + kTail, "the table of contents");
      end_ -= kTail + contents;
      at_ = 8;
      ends_unmarked_ = true;
    }
    while (!has_schema_)
      if (!next_message()) file_.damaged(at_, "an Arrow file must begin with its schema.", "its end");
  }

  bool next(std::string& lines) override {
    const std::size_t before = lines.size();
    while (lines.size() - before < kRowsBytes) {
      if (row_ < batch_.rows)
        write_row(lines);
      else if (!next_message())
        break;
    }
    return lines.size() > before;
  }

  std::int64_t position() const override { return static_cast<std::int64_t>(at_); }

 private:
  void write_row(std::string& lines) {
    json_.begin_row(lines);
    const char* before = "{";
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (!fields_[i].is_shown()) continue;
      lines += before;
      append_json_string(fields_[i].name, lines);
      lines += ':';
      json_.write(fields_[i], batch_.columns[i], row_, batch_at_, lines);
      before = ",";
    }
    lines += "}\n";
    ++row_;
  }

  std::uint32_t number() {
    if (at_ > end_ || end_ - at_ < 4)
      file_.damaged(at_, "an Arrow stream must have a mark of its end.", "the file's end");
    const auto value = FlatTable::read<std::uint32_t>(file_.bytes.data() + at_);
    at_ += 4;
    return value;
  }

  /// Reads one message; false at the end.
  bool next_message() {
    if (ended_ || (ends_unmarked_ && at_ >= end_)) return false;
    std::uint64_t head_bytes = number();
    if (head_bytes == kContinues) head_bytes = number();
    if (head_bytes == 0) {
      ended_ = true;
      at_ = file_.bytes.size();
      return false;
    }
    const std::uint64_t head_at = at_;
    const FlatTable message(file_, head_at, file_.part(head_at, head_bytes, "the head of a message"));
    const std::uint64_t body = head_at + head_bytes;
    const auto body_bytes = message.number<std::uint64_t>(3, 0);
    const std::span<const std::byte> bytes = file_.part(body, body_bytes, "the body of a message");
    at_ = body + body_bytes;
    const auto header = message.table(2);
    if (!header) file_.damaged(head_at, "a message must say what it is.", "nothing");
    enum : std::uint8_t { kSchema = 1, kDictionary = 2, kBatch = 3 };
    const auto type = message.number<std::uint8_t>(1, 0);
    if ((type == kSchema) == has_schema_)
      file_.damaged(head_at, "a stream must have one schema, first.", "another order");
    switch (type) {
      case kSchema:
        take_schema(*header);
        break;
      case kDictionary:
        take_dictionary(*header, body, bytes);
        break;
      case kBatch:
        batch_ = read_arrow_batch(*header, fields_, false, body, bytes, file_);
        batch_at_ = body;
        row_ = 0;
        break;
      default:
        file_.not_read("messages must be batches of rows or dictionaries.", concat("kind ", static_cast<int>(type)));
    }
    return true;
  }

  void take_schema(const FlatTable& schema) {
    fields_ = read_arrow_schema(schema, file_);
    bool any = false;
    for (const ArrowField& field : fields_) {
      any = any || field.is_shown();
      note_dictionaries(field);
    }
    if (!any) file_.not_read("there must be a column of text or numbers.", "none");
    has_schema_ = true;
  }

  void note_dictionaries(const ArrowField& field) {
    if (field.dictionary) {
      const auto [place, added] = of_dictionary_.try_emplace(field.dictionary->id, 1, field);
      const ArrowField& other = place->second[0];
      const bool same = other.kind == field.kind && other.width == field.width && other.is_signed == field.is_signed &&
                        other.is_bytes == field.is_bytes && other.children.empty() && field.children.empty();
      if (!added && !same) file_.not_read("columns that share a dictionary must be of one plain type.", field.name);
    }
    for (const ArrowField& child : field.children) note_dictionaries(child);
  }

  void take_dictionary(const FlatTable& dictionary, std::uint64_t body, std::span<const std::byte> bytes) {
    const auto id = dictionary.number<std::int64_t>(0, 0);
    const auto fields = of_dictionary_.find(id);
    const auto data = dictionary.table(1);
    if (fields == of_dictionary_.end() || !data)
      file_.damaged(body, "a dictionary must be that of a column.", concat(id));
    std::vector<ArrowBatch>& parts = json_.dictionaries[id];
    if (dictionary.number<std::uint8_t>(2, 0) == 0) parts.clear();  // else it adds to what was there
    parts.push_back(read_arrow_batch(*data, fields->second, true, body, bytes, file_));
  }

  ColumnFile file_;
  ArrowJson json_;
  std::vector<ArrowField> fields_;
  std::map<std::int64_t, std::vector<ArrowField>> of_dictionary_;  // the one field whose values it holds
  ArrowBatch batch_;
  std::uint64_t at_ = 0, end_ = 0, row_ = 0, batch_at_ = 0;
  bool has_schema_ = false, ended_ = false, ends_unmarked_ = false;
};

}  // namespace

std::unique_ptr<RowSource> open_arrow(ColumnFile file) { return std::make_unique<ArrowRows>(std::move(file)); }

}  // namespace megatron::data
