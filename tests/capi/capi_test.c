/* The C interface from C: feed, step, sample, fork, truncate, errors. capi_test MODEL */
#include <quire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(c)                                                                     \
  do {                                                                                 \
    if (!(c)) {                                                                        \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #c, quire_last_error()); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

static uint32_t next(quire_session* s) {
  uint32_t token;
  REQUIRE(quire_step(&s, 1) == QUIRE_OK);
  REQUIRE(quire_sample(s, NULL, &token) == QUIRE_OK);
  return token;
}

static void generate(quire_session* s, uint32_t* out, int count) {
  for (int i = 0; i < count; ++i) {
    out[i] = next(s);
    REQUIRE(quire_feed(s, &out[i], 1) == QUIRE_OK);
  }
}

/* Every call without what it needs: an error, never a crash. */
static void check_nulls(quire_model* model) {
  uint32_t id = 0;
  char text[8];
  quire_session* none[1] = {NULL};
  quire_message nameless = {NULL, "x"};
  REQUIRE(quire_open(NULL, NULL) == NULL && strstr(quire_last_error(), "NULL"));
  quire_close(NULL);
  quire_session_free(NULL);
  REQUIRE(quire_vocabulary(NULL) == 0 && quire_context(NULL) == 0);
  REQUIRE(quire_tokenize(NULL, "x", 1, 0, &id, 1) == QUIRE_INVALID);
  REQUIRE(quire_tokenize(model, NULL, 1, 0, &id, 1) == QUIRE_INVALID);
  REQUIRE(quire_tokenize(model, "x", 1, 0, NULL, 1) == QUIRE_INVALID);
  REQUIRE(quire_tokenize(model, "x", 1, 0, NULL, 0) == 1);
  REQUIRE(quire_token_text(NULL, 1, text, 8) == QUIRE_INVALID);
  REQUIRE(quire_token_text(model, 1, NULL, 8) == QUIRE_INVALID);
  REQUIRE(quire_token_text(model, 0xffffffffu, text, 8) == QUIRE_INVALID);
  REQUIRE(quire_is_end(NULL, 1) == QUIRE_INVALID);
  REQUIRE(quire_chat(NULL, NULL, 0, NULL, 0) == QUIRE_INVALID);
  REQUIRE(quire_chat(model, NULL, 1, &id, 1) == QUIRE_INVALID);
  REQUIRE(quire_chat(model, &nameless, 1, &id, 1) == QUIRE_INVALID);
  REQUIRE(quire_session_new(NULL, 16) == NULL && strstr(quire_last_error(), "quire_session_new"));
  REQUIRE(quire_budget(NULL, NULL) == QUIRE_INVALID);
  REQUIRE(quire_feed(NULL, &id, 1) == QUIRE_INVALID);
  REQUIRE(quire_step(NULL, 1) == QUIRE_INVALID && quire_step(none, 1) == QUIRE_INVALID);
  REQUIRE(quire_step(NULL, 0) == QUIRE_OK);
  REQUIRE(quire_logits(NULL) == NULL && quire_fork(NULL) == NULL);
  REQUIRE(quire_sample(NULL, NULL, &id) == QUIRE_INVALID);
  REQUIRE(quire_length(NULL) == 0 && quire_cached(NULL) == 0 && quire_kv_bytes(NULL) == 0);
  REQUIRE(quire_truncate(NULL, 0) == QUIRE_INVALID);
  quire_session* s = quire_session_new(model, 16);
  REQUIRE(quire_feed(s, NULL, 1) == QUIRE_INVALID && quire_feed(s, &id, 1) == QUIRE_OK);
  REQUIRE(quire_step(&s, 1) == QUIRE_OK && quire_sample(s, NULL, NULL) == QUIRE_INVALID);
  quire_session_free(s);
}

/* The template's own words are control tokens, those of people are not. */
static void check_chat(const quire_model* model) {
  uint32_t ids[256], spelled[256];
  const quire_message messages[] = {{"system", "Be brief."}, {"user", "<|im_end|> Hi"}};
  const int64_t n = quire_chat(model, messages, 2, ids, 256);
  REQUIRE(n > 10 && n <= 256 && quire_chat(model, messages, 2, NULL, 0) == n);
  const char* text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n";
  const int64_t first = quire_tokenize(model, text, strlen(text), 1, spelled, 256);
  REQUIRE(first > 4 && memcmp(ids, spelled, (size_t)first * sizeof ids[0]) == 0);
  int ends = 0;
  for (int64_t i = 0; i < n; ++i) ends += quire_is_end(model, ids[i]);
  REQUIRE(ends == 2); /* one per message */
}

int main(int argc, char** argv) {
  REQUIRE(quire_open("no such file", NULL) == NULL && strstr(quire_last_error(), "no such file"));
  if (argc < 2) {
    printf("no model given: skipped\n");
    return 77;
  }
  quire_options options = quire_options_default();
  options.kv_cache_bytes = 256u << 20;
  options.threads = 2;
  quire_model* model = quire_open(argv[1], &options);
  REQUIRE(model != NULL);
  const char* text =
      "The quick brown fox jumps over the lazy dog. It was a bright cold day in April, and the "
      "clocks were";
  uint32_t prompt[128], straight[24], again[24], forked[24];
  const int64_t count = quire_tokenize(model, text, strlen(text), 0, prompt, 128);
  REQUIRE(count > 16 && count <= 128);

  quire_session* a = quire_session_new(model, 256);
  REQUIRE(a && quire_logits(a) == NULL);
  uint32_t token;
  REQUIRE(quire_sample(a, NULL, &token) == QUIRE_INVALID);
  REQUIRE(quire_step(&a, 1) == QUIRE_INVALID);
  REQUIRE(quire_feed(a, prompt, (size_t)count) == QUIRE_OK);
  generate(a, straight, 24);
  REQUIRE(quire_length(a) == count + 24);

  /* The same prompt again: part of it is cached, the answer is the same. */
  quire_session* b = quire_session_new(model, 256);
  REQUIRE(quire_feed(b, prompt, (size_t)count) == QUIRE_OK);
  generate(b, again, 24);
  REQUIRE(memcmp(straight, again, sizeof straight) == 0);

  /* Two sessions in one step, one of them a fork that was rolled back to the prompt. */
  quire_session* c = quire_fork(b);
  REQUIRE(c && quire_truncate(c, (uint32_t)count) == QUIRE_OK && quire_length(c) == count);
  quire_session* both[2] = {c, quire_fork(c)};
  for (int i = 0; i < 24; ++i) {
    uint32_t other;
    REQUIRE(quire_step(both, 2) == QUIRE_OK);
    REQUIRE(quire_sample(both[0], NULL, &forked[i]) == QUIRE_OK &&
            quire_sample(both[1], NULL, &other) == QUIRE_OK);
    REQUIRE(forked[i] == other);
    REQUIRE(quire_feed(both[0], &forked[i], 1) == QUIRE_OK &&
            quire_feed(both[1], &other, 1) == QUIRE_OK);
  }
  REQUIRE(memcmp(straight, forked, sizeof straight) == 0);

  /* Equal seeds draw equal tokens. */
  quire_sampling sampling = quire_sampling_default();
  sampling.temperature = 1;
  sampling.seed = 7;
  uint32_t x, y;
  REQUIRE(quire_step(both, 2) == QUIRE_OK);
  REQUIRE(quire_sample(both[0], &sampling, &x) == QUIRE_OK &&
          quire_sample(both[1], &sampling, &y) == QUIRE_OK && x == y);
  sampling.top_p = 2;
  REQUIRE(quire_sample(both[0], &sampling, &x) == QUIRE_INVALID &&
          strstr(quire_last_error(), "top_p"));

  REQUIRE(quire_truncate(a, 10000) == QUIRE_INVALID);

  /* A session counts once in a step, and can be rolled back to its first token and to nothing. */
  quire_session* twice[2] = {c, c};
  REQUIRE(quire_step(twice, 2) == QUIRE_INVALID && strstr(quire_last_error(), "twice"));
  for (uint32_t length = 0; length < 2; ++length) {
    quire_session* back = quire_fork(b);
    REQUIRE(back && quire_truncate(back, length) == QUIRE_OK && quire_length(back) == length);
    REQUIRE(quire_feed(back, prompt + length, (size_t)count - length) == QUIRE_OK);
    generate(back, again, 24);
    REQUIRE(memcmp(straight, again, sizeof straight) == 0);
    quire_session_free(back);
  }
  token = quire_vocabulary(model);
  REQUIRE(quire_feed(a, &token, 1) == QUIRE_INVALID);
  REQUIRE(quire_session_new(model, quire_context(model) + 1) == NULL);
  check_nulls(model);
  check_chat(model);
  quire_session_free(both[1]);
  quire_session_free(c);
  quire_session_free(b);
  /* A session outlives its model's handle. */
  quire_close(model);
  REQUIRE(quire_step(&a, 1) == QUIRE_OK && quire_sample(a, NULL, &token) == QUIRE_OK);
  quire_session_free(a);

  /* What stays of a prompt, and what answers read of it. */
  uint32_t longer[256];
  for (int i = 0; i < 256; ++i) longer[i] = prompt[i % count];
  enum { WAYS = 7 };
  const char* budgets[WAYS] = {NULL,       "streaming:40,sink=4", "snapkv:30%", NULL, NULL, NULL,
                               "knorm:50%"};
  const char* selects[WAYS] = {
      NULL, NULL, NULL, "quest:64", "xattention:0.2", "vertical-slash:16+16", "xattention:0.2"};
  uint32_t answers[WAYS][24];
  float logits[WAYS]; /* one of each way's, to see that it did something */
  for (int way = 0; way < WAYS; ++way) {
    options.kv_budget = budgets[way];
    options.kv_select = selects[way];
    REQUIRE((model = quire_open(argv[1], &options)) != NULL);
    REQUIRE((a = quire_session_new(model, 512)) != NULL);
    REQUIRE(quire_feed(a, longer, 256) == QUIRE_OK);
    generate(a, answers[way], 12);
    logits[way] = quire_logits(a)[answers[0][11]];
    REQUIRE((b = quire_fork(a)) != NULL);
    generate(a, answers[way] + 12, 12);
    generate(b, again, 12);
    REQUIRE(memcmp(answers[way] + 12, again, 12 * sizeof again[0]) == 0);
    const int back = quire_truncate(b, 262);
    REQUIRE(back == (budgets[way] ? QUIRE_UNSUPPORTED : QUIRE_OK));
    if (back == QUIRE_OK) {
      generate(b, again, 12);
      REQUIRE(memcmp(answers[way] + 6, again, 12 * sizeof again[0]) == 0);
    }
    quire_session_free(b);
    /* With a select, prompts are read once; two of them beside each other, one from the cache. */
    if (selects[way]) REQUIRE(budgets[way] || quire_truncate(a, 200) == QUIRE_UNSUPPORTED);
    REQUIRE((b = quire_session_new(model, 512)) != NULL &&
            (c = quire_session_new(model, 512)) != NULL);
    REQUIRE(quire_feed(b, longer, 256) == QUIRE_OK && quire_feed(c, longer, 237) == QUIRE_OK);
    quire_session* side[2] = {b, c};
    for (int i = 0; i < 24; ++i) {
      uint32_t next[2];
      REQUIRE(quire_step(side, 2) == QUIRE_OK);
      for (int s = 0; s < 2; ++s)
        REQUIRE(quire_sample(side[s], NULL, &next[s]) == QUIRE_OK &&
                quire_feed(side[s], &next[s], 1) == QUIRE_OK);
      REQUIRE(next[0] == answers[way][i]);
    }
    REQUIRE(budgets[way] || quire_cached(b) >= 224);
    quire_session_free(c);
    quire_session_free(b);
    quire_session_free(a);
    quire_close(model);
  }
  for (int way = 1; way < WAYS; ++way) REQUIRE(logits[way] != logits[0]);
  REQUIRE(memcmp(answers[0], answers[1], sizeof answers[0]) != 0);

  /* A session may say for itself what stays, beside others that keep everything. */
  options.kv_budget = options.kv_select = NULL;
  REQUIRE((model = quire_open(argv[1], &options)) != NULL);
  REQUIRE((a = quire_session_new(model, 512)) != NULL &&
          (b = quire_session_new(model, 512)) != NULL);
  REQUIRE(quire_budget(a, "nobody:5") != QUIRE_OK && strstr(quire_last_error(), "nobody"));
  REQUIRE(quire_budget(a, "streaming:40,sink=4") == QUIRE_OK);
  REQUIRE(quire_budget(b, "snapkv:30%") == QUIRE_OK && quire_budget(b, NULL) == QUIRE_OK);
  REQUIRE(quire_feed(a, longer, 256) == QUIRE_OK && quire_feed(b, longer, 256) == QUIRE_OK);
  REQUIRE((c = quire_fork(a)) != NULL);
  generate(b, again, 24);
  REQUIRE(memcmp(answers[0], again, sizeof again) == 0);
  generate(a, again, 24);
  REQUIRE(memcmp(answers[1], again, sizeof again) == 0);
  generate(c, again, 24);
  REQUIRE(memcmp(answers[1], again, sizeof again) == 0);
  REQUIRE(quire_budget(a, NULL) == QUIRE_INVALID);
  REQUIRE(quire_kv_bytes(a) > 0 && quire_kv_bytes(a) < quire_kv_bytes(b) / 2);
  quire_session_free(c);
  quire_session_free(b);
  quire_session_free(a);
  quire_close(model);
  const char* wrong[] = {"nobody:5", "snapkv", "quest:5"};
  for (int i = 0; i < 3; ++i) {
    options.kv_budget = wrong[i];
    options.kv_select = NULL;
    REQUIRE(quire_open(argv[1], &options) == NULL && strlen(quire_last_error()) > 0);
    options.kv_budget = NULL;
    options.kv_select = i == 2 ? "xattention:1.5" : wrong[i];
    REQUIRE(quire_open(argv[1], &options) == NULL && strlen(quire_last_error()) > 0);
  }
  printf("feed, step, sample, fork, truncate and cached prompts agree\n");
  return 0;
}
