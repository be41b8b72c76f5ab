// kv/tier/s3_store.h - a bucket of S3, or of what speaks like it, as a ValueStore: one object a value.
//
// Requests of a batch go out together (net/signed_http.h). Nothing here removes old objects: a
// lifecycle rule of the bucket does.
//
//   TRY(const S3Place place, parse_s3_url("s3://bucket/prefix?region=eu-west-1"));
//   TRY(auto store, open_s3_store(place, system_environment));
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kv/tier/aws_settings.h"
#include "kv/tier/value_store.h"

namespace quire {

struct S3Place {
  std::string bucket, prefix;                      // the prefix without slashes at its ends
  std::string region, endpoint, profile, ca_file;  // empty: as the environment has it
  Nanoseconds patience = 1'000'000'000;            // without progress
};

// s3://BUCKET[/PREFIX][?region=REGION&endpoint=URL&profile=NAME&ca=FILE&patience=MILLISECONDS]
Result<S3Place> parse_s3_url(std::string_view url);

// Where the objects are: "https://bucket.s3.eu-west-1.amazonaws.com/prefix/". Another endpoint, and a
// bucket with dots in its name, have the bucket in the path.
std::string s3_base_url(const S3Place& place, const AwsSettings& settings);

// Reads the credentials; connects with the first call.
Result<std::unique_ptr<ValueStore>> open_s3_store(const S3Place& place,
                                                  const Environment& environment);

}  // namespace quire
