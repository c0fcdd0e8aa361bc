#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Pickles of protocol 2, and the archives of torch.save that hold them: what Megatron-Core loads. No torch here.
namespace megatron::interchange {

/// Appends values one after the other. Containers are begun and ended; in a dictionary keys and values take turns.
class PickleWriter {
 public:
  PickleWriter();

  void none() { code('N'); }
  void boolean(bool value) { code(value ? '\x88' : '\x89'); }
  void integer(std::int64_t value);
  void number(double value);
  void text(std::string_view value);
  /// A name of Python: ("torch", "float32").
  void name(std::string_view module, std::string_view name);
  /// torch.Size.
  void size(const std::vector<std::int64_t>& shape);
  /// A contiguous tensor whose numbers, a torch.`storage` ("FloatStorage"), are the archive's file data/`number`.
  void tensor(std::string_view storage, std::size_t number, const std::vector<std::int64_t>& shape);

  void begin_dict() { codes("}("); }
  void end_dict() { code('u'); }
  void begin_list() { codes("]("); }
  void end_list() { code('e'); }
  void begin_tuple() { code('('); }
  void end_tuple() { code('t'); }
  /// Calls the name before with the tuple before.
  void call() { code('R'); }
  /// What the tuple before names in the archive.
  void persistent() { code('Q'); }
  /// An object of a class, whose state is the next value; end_object() is to follow that.
  void begin_object(std::string_view module, std::string_view name);
  void end_object() { code('b'); }
  /// The value of a key.
  void entry(std::string_view key, std::int64_t value) { text(key), integer(value); }
  void entry(std::string_view key, int value) { text(key), integer(value); }
  void entry(std::string_view key, double value) { text(key), number(value); }
  void entry(std::string_view key, bool value) { text(key), boolean(value); }
  void entry(std::string_view key, const std::string& value) { text(key), text(value); }
  void entry(std::string_view key, const char* value) { text(key), text(value); }
  void null_entry(std::string_view key) { text(key), none(); }

  /// The finished pickle; nothing may follow.
  std::string take();

 private:
  void code(char opcode) { bytes_ += opcode; }
  void codes(std::string_view opcodes) { bytes_ += opcodes; }
  template <class T>
  void raw(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  std::string bytes_;
};

/// A file of an archive. `data` must live until the archive is made.
struct ArchiveFile {
  std::string name;
  std::string_view data;
};

/// The ZIP archive, without compression, of files that have less than 4 GiB together. Their bytes begin at multiples of
/// 64.
std::string make_archive(const std::vector<ArchiveFile>& files);

/// What torch.save writes of a value without tensors, whose pickle this is.
std::string saved_value(const std::string& pickle);

/// What torch.save writes of a contiguous tensor. `storage`: "FloatStorage".
std::string saved_tensor(std::string_view storage, const std::vector<std::int64_t>& shape, std::string_view data);

}  // namespace megatron::interchange
