import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.regex.Pattern;

/** Decide, wait, give back, and a batch, at a running `capline serve`: java Client.java http://127.0.0.1:8080 */
public class Client {
    private static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static String url;

    public static void main(String[] words) throws IOException, InterruptedException {
        url = words[0];

        // The id makes it one consumption: the call may be sent again when no answer came.
        String decision = ask("/v1/decide", "{\"policy\": \"promo\", \"subject\": \"user:42\", \"id\": \"order-1\"}");
        System.out.println("decide: allowed " + field(decision, "allowed") + ", remaining " + field(decision, "remaining"));

        // The next free instant, at most 30 seconds away: sleep until then, and go.
        String slot = ask("/v1/schedule", "{\"policy\": \"psp\", \"subject\": \"adyen\", \"max_wait\": 30}");
        if (field(slot, "allowed").equals("true")) {
            Thread.sleep(Math.round(Double.parseDouble(field(slot, "wait")) * 1000));
        }
        System.out.println("wait: allowed " + field(slot, "allowed"));

        // It was not needed after all: the hit is given back, once.
        String hit = field(decision, "hit");
        String refund = ask("/v1/refund", "{\"policy\": \"promo\", \"subject\": \"user:42\", \"hit\": " + hit + "}");
        System.out.println("refund: " + field(refund, "refunded"));

        // Many subjects in one call. With the receipt it may be sent again, and gets its first answers back.
        String batch = "{\"policy\": \"promo\", \"subjects\": [1, 2, \"ann\"], \"receipt\": \"monday-1\"}";
        System.out.println("batch: " + field(ask("/v1/decide/batch", batch), "allowed"));
    }

    /** The answer's body. A refusal is an answer too: 200 with "allowed": false; an outage is 503 with Retry-After. */
    private static String ask(String path, String form) throws IOException, InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(URI.create(url + path))
                .header("Content-Type", "application/json")
                .timeout(Duration.ofSeconds(10))
                .POST(HttpRequest.BodyPublishers.ofString(form))
                .build();
        var answer = HTTP.send(request, BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IOException(path + ": " + answer.statusCode() + " " + answer.body());
        }
        return answer.body();
    }

    /** One field of a flat answer; a program that has a JSON library takes that. */
    private static String field(String json, String name) {
        var found = Pattern.compile("\"" + name + "\":(\\[[^\\]]*\\]|[^,}]*)").matcher(json);
        if (!found.find()) {
            throw new IllegalStateException("no " + name + " in " + json);
        }
        return found.group(1);
    }
}
