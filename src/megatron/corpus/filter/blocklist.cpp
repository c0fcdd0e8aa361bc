#include "megatron/corpus/filter/blocklist.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/data/files/text_reader.h"

namespace megatron::corpus {
namespace {

constexpr std::size_t kMaxDomain = 255;  // as in DNS

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\f\v";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

/// Calls `entry(text, where)` for each line that says something.
template <class OnEntry>
void for_each_entry(const std::string& path, OnEntry&& entry) {
  data::BlockReader reader({.inputs = {path}, .format = data::TextFormat::Lines, .max_document_bytes = 1 << 16});
  data::DocumentParser parser("");
  for (data::TextBlock block; reader.next(block);)
    for (std::size_t i = 0; i < block.records.size(); ++i) {
      std::string_view line = parser.parse(block, i)[0];
      if (block.records[i].line == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
      line = trimmed(line);
      if (line.empty() || line[0] == '#') continue;
      const std::string where = concat(block.file, ", line ", block.records[i].line, ": ");
      if (line.find_first_of(" \t") != std::string_view::npos)
        throw ConfigError(rule_got_fix(where + "a list of sites must have one name a line.", std::string(line),
                                       "one site a line, such as example.com"));
      entry(line, where);
    }
}

/// Whether a URL can have this host: labels with dots between them, or an IPv6 address in brackets.
bool is_host(std::string_view host) {
  const auto all = [](std::string_view text, std::string_view others) {
    return std::ranges::all_of(text, [&](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80 ||
             others.find(c) != std::string_view::npos;
    });
  };
  if (host.starts_with('[') && host.ends_with(']')) return all(host.substr(1, host.size() - 2), ":.");
  return !host.empty() && all(host, ".-_") && !host.starts_with('.') && host.find("..") == std::string_view::npos;
}

}  // namespace

UrlParts url_parts(std::string_view url) {
  url = trimmed(url);
  url = url.substr(0, url.find('#'));
  if (const std::size_t scheme = url.find("://"); scheme != std::string_view::npos && scheme < url.find_first_of("/?"))
    url.remove_prefix(scheme + 3);
  const std::size_t host_end = std::min(url.find_first_of("/?"), url.size());
  std::string_view host = url.substr(0, host_end), path = url.substr(host_end);
  if (const std::size_t user = host.rfind('@'); user != std::string_view::npos) host.remove_prefix(user + 1);
  const std::size_t bracket = host.rfind(']');  // of an IPv6 address, whose colons are no port
  if (const std::size_t port = host.rfind(':');
      port != std::string_view::npos && (bracket == std::string_view::npos || port > bracket))
    host = host.substr(0, port);
  if (host.ends_with('.')) host.remove_suffix(1);
  if (path.ends_with('/')) path.remove_suffix(1);
  UrlParts parts{.host = std::string(host), .address = {}};
  for (char& c : parts.host)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 0x20);
  parts.address = parts.host + std::string(path);
  return parts;
}

void Blocklist::add_domains(const std::string& path) {
  for_each_entry(path, [&](std::string_view line, const std::string& where) {
    const std::string_view entry = line;
    if (line.starts_with("*.")) line.remove_prefix(2);
    if (line.starts_with('.')) line.remove_prefix(1);
    UrlParts parts = url_parts(line);
    if (parts.address != parts.host)
      throw ConfigError(rule_got_fix(where + "a list of domains must hold domains.", std::string(entry),
                                     "give URLs in a list of URLs: --block-urls"));
    if (parts.host.size() > kMaxDomain || !is_host(parts.host))
      throw ConfigError(rule_got_fix(where + "a list of domains must hold domains of at most 255 bytes.",
                                     std::string(entry), "one domain a line, such as example.com"));
    domains_.insert(std::move(parts.host));
  });
}

void Blocklist::add_urls(const std::string& path) {
  for_each_entry(path, [&](std::string_view line, const std::string& where) {
    UrlParts parts = url_parts(line);
    if (parts.host.empty())
      throw ConfigError(rule_got_fix(where + "a list of URLs must hold URLs.", std::string(line),
                                     "one URL a line, such as https://example.com/page"));
    urls_.insert(std::move(parts.address));
  });
}

bool Blocklist::blocks(std::string_view url) const {
  const UrlParts parts = url_parts(url);
  if (urls_.contains(parts.address)) return true;
  if (domains_.empty()) return false;
  std::string_view domain = parts.host;
  const auto next_label = [&](std::size_t from) {
    const std::size_t dot = domain.find('.', from);
    domain = dot == std::string_view::npos ? std::string_view() : domain.substr(dot + 1);
  };
  // No list has a longer name, so a megabyte of dots is not looked up byte by byte.
  if (domain.size() > kMaxDomain) next_label(domain.size() - kMaxDomain - 1);
  for (; !domain.empty(); next_label(0))
    if (domains_.contains(domain)) return true;
  return false;
}

}  // namespace megatron::corpus
