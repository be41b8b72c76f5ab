#include "kv/tier/s3_store.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "kv/tier/store_tier.h"
#include "net/signed_http.h"

namespace quire {
namespace {

constexpr const char* kUsualRegion = "us-east-1";

// What the server says went wrong: <Error><Code>AccessDenied</Code>...
std::string s3_error_code(std::span<const std::byte> body) {
  const std::string_view text(reinterpret_cast<const char*>(body.data()),
                              std::min<std::size_t>(body.size(), 4096));
  const std::size_t from = text.find("<Code>");
  const std::size_t to = text.find("</Code>");
  if (from == text.npos || to == text.npos || to < from + 6 || to - from > 80) return {};
  return " " + std::string(text.substr(from + 6, to - from - 6));
}

Error s3_refusal(const SignedAnswer& answer) {
  const char* help = "";
  if (answer.status == 403)
    help =
        "; are the credentials right, and may they get, put, delete and list (without the last "
        "one S3 does not say that an object is not there)?";
  if (answer.status == 301 || answer.status == 307 || answer.status == 400)
    help = "; is it in another region? say which with ?region=";
  return {Code::unavailable,
          fmt::format("S3 answers {}{}{}", answer.status, s3_error_code(answer.body), help)};
}

class S3Store final : public ValueStore {
 public:
  S3Store(std::string base, std::unique_ptr<SignedHttp> http)
      : base_(std::move(base)), http_(std::move(http)) {}

  Status contains(std::span<const std::string> names, std::span<std::uint8_t> there) override {
    return run(requests(HttpMethod::head, names), [&](std::size_t i, const SignedAnswer& a) {
      there[i] = a.status == 200;
      return a.status == 200 || a.status == 404;
    });
  }

  Status get(std::span<const std::string> names, const Got& got) override {
    return run(requests(HttpMethod::get, names), [&](std::size_t i, const SignedAnswer& a) {
      if (a.status == 200) got(i, a.body);
      return a.status == 200 || a.status == 404;
    });
  }

  Status put(std::span<const NamedValue> values) override {
    std::vector<SignedRequest> all;
    for (const NamedValue& v : values)
      all.push_back({.method = HttpMethod::put, .url = base_ + v.name, .body = v.value});
    return run(all, [](std::size_t, const SignedAnswer& a) { return a.status == 200; });
  }

  Status erase(std::span<const std::string> names) override {
    return run(requests(HttpMethod::remove, names), [](std::size_t, const SignedAnswer& a) {
      return a.status == 204 || a.status == 200 || a.status == 404;
    });
  }

 private:
  std::vector<SignedRequest> requests(HttpMethod method, std::span<const std::string> names) const {
    std::vector<SignedRequest> all;
    for (const std::string& name : names) all.push_back({.method = method, .url = base_ + name});
    return all;
  }

  // `fine` says whether an answer is one that works.
  template <class Fine>
  Status run(const std::vector<SignedRequest>& all, const Fine& fine) {
    std::optional<Error> refused;
    const Status sent = http_->run(all, [&](std::size_t i, const SignedAnswer& a) {
      if (!fine(i, a) && !refused) refused = s3_refusal(a);
    });
    if (!sent.ok()) return Error{Code::unavailable, "S3: " + sent.error().message};
    return refused ? Status(std::move(*refused)) : Status{};
  }

  const std::string base_;
  const std::unique_ptr<SignedHttp> http_;
};

}  // namespace

Result<std::unique_ptr<ValueStore>> open_s3_store(const S3Place& place,
                                                  const Environment& environment) {
  TRY(AwsSettings settings, read_aws_settings(place.profile, environment));
  if (settings.region.empty()) settings.region = kUsualRegion;
  TRY(auto http,
      SignedHttp::open({.key_id = settings.key_id,
                        .key = settings.key,
                        .session_token = settings.session_token,
                        .region = place.region.empty() ? settings.region : place.region,
                        .ca_file = place.ca_file.empty() ? settings.ca_file : place.ca_file,
                        .patience = place.patience,
                        .answer_bytes_max = kStoredValueMax}));
  return std::unique_ptr<ValueStore>(
      std::make_unique<S3Store>(s3_base_url(place, settings), std::move(http)));
}

namespace {

Result<std::unique_ptr<Tier>> open_s3_tier(const TierSettings& settings, const std::string&) {
  TRY(const S3Place place, parse_s3_url(settings.place));
  return open_store_tier(settings, [place] { return open_s3_store(place, system_environment); });
}

}  // namespace

extern const TierKind kS3TierKind = {"s3", "S3, or what speaks like it: s3://BUCKET/PREFIX",
                                     open_s3_tier};

}  // namespace quire
