#include "megatron/serve/http/message.h"

#include <gmock/gmock.h>

#include "megatron/serve/api/responses.h"
#include "megatron/serve/metrics.h"
#include "megatron/serve/page.h"

namespace megatron::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HttpMessage, HasItsBytes) {
  const HttpResponse response{.status = 429, .body = "{}", .headers = {{"Retry-After", "5"}}};
  EXPECT_EQ(response_bytes(response, {.keep_alive = false}),
            "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nConnection: close\r\n"
            "X-Content-Type-Options: nosniff\r\nRetry-After: 5\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_TRUE(response_bytes(response, {.head_only = true}).ends_with("Content-Length: 2\r\n\r\n"));
  EXPECT_THAT(stream_head({.type = "text/event-stream"}, {}), HasSubstr("Transfer-Encoding: chunked\r\n\r\n"));
  EXPECT_THAT(stream_head({}, {.chunked = false}), Not(HasSubstr("chunked")));
  EXPECT_EQ(stream_piece(std::string(17, 'a'), {}), "11\r\n" + std::string(17, 'a') + "\r\n");
  EXPECT_EQ(stream_piece("abc", {.chunked = false}), "abc");
  EXPECT_EQ(stream_piece("", {}), "");  // would be the end
  EXPECT_EQ(stream_end({}), "0\r\n\r\n");
}

TEST(HttpMessage, HasThePathThatItsTargetNames) {
  for (const auto& [target, path] :
       {std::pair("/v1/models/org%2Fmine", "/v1/models/org/mine"), std::pair("/v1/models?a=%2F", "/v1/models"),
        std::pair("/a%20b%zz%4", "/a b%zz%4"), std::pair("http://host:80/health?x", "/health"),
        std::pair("HTTPS://host/", "/"), std::pair("http://host", "/"), std::pair("http://host?x", "/"),
        std::pair("//health", "//health"), std::pair("*", "*"), std::pair("", "")})
    EXPECT_EQ(path_of(target), path) << target;
}

TEST(HttpMessage, HasAMediaType) {
  const auto type = [](const char* value) { return media_type({.headers = {{"content-type", value}}}); };
  EXPECT_EQ(type("Application/JSON"), "application/json");
  EXPECT_EQ(type("application/json ;charset=utf-8"), "application/json");
  EXPECT_EQ(type("application/jsonp"), "application/jsonp");
  EXPECT_EQ(media_type({}), "");
}

TEST(BearerToken, IsWhatFollowsTheScheme) {
  const auto token = [](const char* value) { return bearer_token({.headers = {{"authorization", value}}}); };
  EXPECT_EQ(token("Bearer abc"), "abc");
  EXPECT_EQ(token("bEARER   abc "), "abc");
  for (const char* none : {"", "Bearer", "Bearer ", "Basic abc", "Bearerabc"}) EXPECT_EQ(token(none), "") << none;
  EXPECT_EQ(bearer_token({}), "");
}

TEST(BearerToken, IsOneOfTheServersOrNone) {
  const std::vector<std::string> tokens = {"one", "second"};
  EXPECT_EQ(token_number("one", tokens), 0);
  EXPECT_EQ(token_number("second", tokens), 1);
  for (const char* wrong : {"", "on", "ones", "One", "secone"}) EXPECT_EQ(token_number(wrong, tokens), -1) << wrong;
  EXPECT_EQ(token_number(std::string_view("one\0", 4), tokens), -1);
}

TEST(ServerSentEvent, HasALineForEachOfItsData) {
  EXPECT_EQ(event("{}"), "data: {}\n\n");
  EXPECT_EQ(event("a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
  EXPECT_EQ(event(""), "data: \n\n");
}

TEST(Metrics, AreTextAsPrometheusReadsIt) {
  Metrics metrics;
  metrics.declare("b_seconds", "histogram", "Times.", {0.5, 1});
  metrics.declare("a_total", "counter", "Things.");
  metrics.add("a_total", 2, {{"path", "/x\"y\\z\n"}});
  metrics.add("a_total", 1, {{"path", "/x\"y\\z\n"}});
  for (const double seconds : {0.25, 0.5, 0.75, 4.0}) metrics.observe("b_seconds", seconds);
  EXPECT_EQ(metrics.text(),
            "# HELP a_total Things.\n# TYPE a_total counter\na_total{path=\"/x\\\"y\\\\z\\n\"} 3\n"
            "# HELP b_seconds Times.\n# TYPE b_seconds histogram\nb_seconds_bucket{le=\"0.5\"} 2\n"
            "b_seconds_bucket{le=\"1\"} 3\nb_seconds_bucket{le=\"+Inf\"} 4\nb_seconds_sum 5.5\nb_seconds_count 4\n");
  EXPECT_THROW(metrics.add("c"), std::logic_error);
}

TEST(Page, NeedsNothingFromElsewhere) {
  for (const char* elsewhere : {"http://", "https://", "src=", "@import", "url("})
    EXPECT_EQ(page().find(elsewhere), std::string_view::npos) << elsewhere;
  EXPECT_THAT(std::string(page()), HasSubstr("<html lang=\"en\">"));
}

}  // namespace
}  // namespace megatron::serve
