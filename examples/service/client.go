// Decide, wait, give back, and a batch, at a running `capline serve`: go run client.go http://127.0.0.1:8080
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

type form map[string]any

type answer struct {
	Allowed   bool    `json:"allowed"`
	Remaining int64   `json:"remaining"`
	Hit       *int64  `json:"hit"`
	Wait      float64 `json:"wait"`
	Refunded  bool    `json:"refunded"`
}

type columns struct {
	Allowed []bool            `json:"allowed"`
	Errors  map[string]string `json:"errors"`
}

var client = http.Client{Timeout: 10 * time.Second}

// ask reads the answer into `into`. A refusal is an answer too: 200 with "allowed": false; an outage is 503.
func ask(path string, asked form, into any) error {
	body, err := json.Marshal(asked)
	if err != nil {
		return err
	}
	got, err := client.Post(os.Args[1]+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusOK {
		problem, _ := io.ReadAll(got.Body)
		return fmt.Errorf("%s: %s %s", path, got.Status, problem)
	}
	return json.NewDecoder(got.Body).Decode(into)
}

func run() error {
	// The id makes it one consumption: the call may be sent again when no answer came.
	var decision, slot, refund answer
	if err := ask("/v1/decide", form{"policy": "promo", "subject": "user:42", "id": "order-1"}, &decision); err != nil {
		return err
	}
	fmt.Printf("decide: allowed %t, remaining %d\n", decision.Allowed, decision.Remaining)

	// The next free instant, at most 30 seconds away: sleep until then, and go.
	if err := ask("/v1/schedule", form{"policy": "psp", "subject": "adyen", "max_wait": 30}, &slot); err != nil {
		return err
	}
	if slot.Allowed {
		time.Sleep(time.Duration(slot.Wait * float64(time.Second)))
	}
	fmt.Printf("wait: allowed %t\n", slot.Allowed)

	// It was not needed after all: the hit is given back, once.
	if err := ask("/v1/refund", form{"policy": "promo", "subject": "user:42", "hit": decision.Hit}, &refund); err != nil {
		return err
	}
	fmt.Printf("refund: %t\n", refund.Refunded)

	// Many subjects in one call. With the receipt it may be sent again, and gets its first answers back.
	var batch columns
	subjects := []any{1, 2, "ann"}
	if err := ask("/v1/decide/batch", form{"policy": "promo", "subjects": subjects, "receipt": "monday-1"}, &batch); err != nil {
		return err
	}
	allowed, _ := json.Marshal(batch.Allowed)
	fmt.Printf("batch: %s\n", allowed)
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
