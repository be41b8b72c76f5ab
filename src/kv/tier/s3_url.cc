// From a URL to an S3Place.
#include <fmt/format.h>

#include <algorithm>

#include "base/number.h"
#include "kv/tier/s3_store.h"

namespace quire {
namespace {

Error bad_s3_url(std::string_view why) {
  return {Code::invalid,
          fmt::format("the address of an S3 store: {}; write s3://BUCKET/PREFIX, with "
                      "?region=REGION&endpoint=URL&profile=NAME behind it if needed",
                      why)};
}

bool made_of(std::string_view text, std::string_view others, bool capitals) {
  return std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (capitals && c >= 'A' && c <= 'Z') ||
           others.find(c) != others.npos;
  });
}

Status parse_s3_option(std::string_view option, S3Place& place) {
  const std::size_t equals = option.find('=');
  const std::string_view name = option.substr(0, equals);
  const std::string_view value = equals == option.npos ? "" : option.substr(equals + 1);
  std::uint32_t number = 0;
  if (name == "region" && !value.empty() && made_of(value, "-", false)) {
    place.region = value;
  } else if (name == "endpoint" &&
             (value.starts_with("http://") || value.starts_with("https://"))) {
    place.endpoint = value;
    while (place.endpoint.ends_with('/')) place.endpoint.pop_back();
  } else if (name == "profile" && !value.empty()) {
    place.profile = value;
  } else if (name == "ca" && !value.empty()) {
    place.ca_file = value;
  } else if (name == "patience" && parse_number(value, number) && number > 0 && number <= 60000) {
    place.patience = Nanoseconds{number} * 1'000'000;
  } else {
    return bad_s3_url(fmt::format("'{}' is no option", option));
  }
  return {};
}

}  // namespace

Result<S3Place> parse_s3_url(std::string_view url) {
  S3Place place;
  if (!url.starts_with("s3://")) return bad_s3_url("it begins with s3://");
  url.remove_prefix(5);
  std::string_view options;
  if (const std::size_t mark = url.find('?'); mark != url.npos) {
    options = url.substr(mark + 1);
    url = url.substr(0, mark);
  }
  const std::size_t slash = std::min(url.find('/'), url.size());
  place.bucket = url.substr(0, slash);
  if (place.bucket.size() < 3 || place.bucket.size() > 63 || !made_of(place.bucket, ".-", false))
    return bad_s3_url("a bucket's name has 3 to 63 small letters, digits, dots and hyphens");
  std::string_view prefix = url.substr(slash);
  while (prefix.starts_with('/')) prefix.remove_prefix(1);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  if (prefix.size() > 512 || !made_of(prefix, "/_.-", true) || prefix.find("//") != prefix.npos ||
      ("/" + std::string(prefix) + "/").find("/.") != std::string::npos)
    return bad_s3_url("a prefix has letters, digits, and / _ . - between them");
  place.prefix = prefix;
  while (!options.empty()) {
    const std::size_t end = std::min(options.find('&'), options.size());
    TRY_STATUS(parse_s3_option(options.substr(0, end), place));
    options.remove_prefix(std::min(end + 1, options.size()));
  }
  return place;
}

std::string s3_base_url(const S3Place& place, const AwsSettings& settings) {
  const std::string& endpoint = place.endpoint.empty() ? settings.endpoint : place.endpoint;
  const std::string& region = place.region.empty() ? settings.region : place.region;
  const std::string host =
      fmt::format("s3.{}.amazonaws.com{}", region, region.starts_with("cn-") ? ".cn" : "");
  std::string base;
  if (!endpoint.empty())
    base = endpoint + "/" + place.bucket;
  else if (place.bucket.find('.') != std::string::npos)  // no certificate is for such a host
    base = "https://" + host + "/" + place.bucket;
  else
    base = "https://" + place.bucket + "." + host;
  return base + "/" + (place.prefix.empty() ? "" : place.prefix + "/");
}

}  // namespace quire
